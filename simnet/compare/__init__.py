"""What two or more simulations say together: which system pays, from where on, and who reaches a target first."""
