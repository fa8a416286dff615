"""Networks in torch: batched ensembles, encoders, recurrent layers, normalisers, heads; and how they are written down."""
