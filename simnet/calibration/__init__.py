"""From measurements to a calibration."""
