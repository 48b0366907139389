"""Views of a stream for people: facts joined once, and pictures, tables and pages of them."""
