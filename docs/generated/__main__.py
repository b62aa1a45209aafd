"""Write what is generated into the pages anew: `make reference`."""

from docs.generated import filled, pages

for page in pages():
    text = page.read_text()
    if (new := filled(text)) != text:
        page.write_text(new)
