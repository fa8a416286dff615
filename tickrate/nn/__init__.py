"""Networks in torch: batched ensembles, normalisers, the squashed Gaussian, folding to affine layers."""
