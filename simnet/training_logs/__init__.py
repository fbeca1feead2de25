"""Loss curves as trainers log them: tables (CSV, W&B), and TensorBoard's event files."""
