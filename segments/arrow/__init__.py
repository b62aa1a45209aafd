"""Messages as Arrow record batches, for programs that analyse them.

Needs the extra `arrow` (pyarrow, numpy); importing this module and `parts` does not. `blocks` puts
the messages of many chunks together, `values` finds in all of them at once what columns need,
`columns` makes the arrays.
"""
