"""What people look at: live view, plots, reports."""
