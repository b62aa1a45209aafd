"""Keys: finding messages by the values of declared properties.

`forms.py` says what the keys of a message are, `extraction.py` finds those of a chunk, `table.py`
and `index.py` know which messages may have one. Files of them are made in `segments/derived`.
Synchronous.
"""

from segments.keys.forms import Key, KeyReader, forms_of_key, key_prints
from segments.keys.index import KeyIndex

__all__ = ["Key", "KeyIndex", "KeyReader", "forms_of_key", "key_prints"]
