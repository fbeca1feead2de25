"""Steps that each worker takes alone: local SGD and DiLoCo around any optimizer of torch."""
