"""Networks in torch: ensembles, encoders, recurrent layers, normalisers; and how they are written down."""
