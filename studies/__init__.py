"""What makes the committed data: gradients of real models, and the trainings behind two pages of docs/evidence."""
