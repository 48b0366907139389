"""Tables of options: parsers, help, pages and the keywords of Python follow from them."""
