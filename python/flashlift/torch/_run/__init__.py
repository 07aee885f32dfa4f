"""Running attentions: a call (call), compiled kernels (kernels, views, threads), and torch's ways to them (dispatch,
operators, autograd, modes)."""
