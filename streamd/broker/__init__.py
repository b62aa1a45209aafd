"""What all protocols share: virtual hosts, streams, the catalog. It knows no protocol."""
