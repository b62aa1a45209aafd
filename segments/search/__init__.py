"""Searching a log for single messages: by key, by time, by selector, newest or oldest first.

A search is exact: an index or a filter only rules chunks out, each message that comes out was
tested. It goes on where it was cut, by a token, and as of the moment at which it began. Synchronous
and in short steps; see search.py.
"""
