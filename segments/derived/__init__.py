"""Files that are made of segments, and can be made again: filter files and key indexes."""
