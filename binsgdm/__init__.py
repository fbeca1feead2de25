"""The BinSGDM optimizer for PyTorch: reserved, not there yet.

This version of the distribution holds only the simulator, `simnet`, which models what BinSGDM would take. Importing
this package gives no optimizer and no kernels.
"""
