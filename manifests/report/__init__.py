"""A corpus as one page of pictures: `figures` reads what there is to show, `charts` draws it, `page` lays it out."""
