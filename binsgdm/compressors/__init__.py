"""The compressing systems of the field under one interface; `registry` names them all."""
