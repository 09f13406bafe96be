"""An accelerator: updates, the whole pipeline, agreement with the actors; and what a bare machine needs for it."""
