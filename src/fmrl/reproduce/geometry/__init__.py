"""Whether learning the shape in which tasks differ pays, and where it does not."""
