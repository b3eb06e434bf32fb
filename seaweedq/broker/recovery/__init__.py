"""Recovery of a dead broker's journal."""
