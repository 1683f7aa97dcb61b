"""Licences as the Hub and schema.org name them."""

from __future__ import annotations

HUB = {
    "AGPL-3.0-only": "agpl-3.0",
    "AGPL-3.0-or-later": "agpl-3.0",
    "Apache-2.0": "apache-2.0",
    "BSD-2-Clause": "bsd-2-clause",
    "BSD-3-Clause": "bsd-3-clause",
    "CC-BY-2.0": "cc-by-2.0",
    "CC-BY-2.5": "cc-by-2.5",
    "CC-BY-3.0": "cc-by-3.0",
    "CC-BY-4.0": "cc-by-4.0",
    "CC-BY-NC-2.0": "cc-by-nc-2.0",
    "CC-BY-NC-3.0": "cc-by-nc-3.0",
    "CC-BY-NC-4.0": "cc-by-nc-4.0",
    "CC-BY-NC-ND-3.0": "cc-by-nc-nd-3.0",
    "CC-BY-NC-ND-4.0": "cc-by-nc-nd-4.0",
    "CC-BY-NC-SA-2.0": "cc-by-nc-sa-2.0",
    "CC-BY-NC-SA-3.0": "cc-by-nc-sa-3.0",
    "CC-BY-NC-SA-4.0": "cc-by-nc-sa-4.0",
    "CC-BY-ND-4.0": "cc-by-nd-4.0",
    "CC-BY-SA-3.0": "cc-by-sa-3.0",
    "CC-BY-SA-4.0": "cc-by-sa-4.0",
    "CC0-1.0": "cc0-1.0",
    "CDLA-Permissive-1.0": "cdla-permissive-1.0",
    "CDLA-Permissive-2.0": "cdla-permissive-2.0",
    "CDLA-Sharing-1.0": "cdla-sharing-1.0",
    "GPL-2.0-only": "gpl-2.0",
    "GPL-2.0-or-later": "gpl-2.0",
    "GPL-3.0-only": "gpl-3.0",
    "GPL-3.0-or-later": "gpl-3.0",
    "ISC": "isc",
    "LGPL-3.0-only": "lgpl-3.0",
    "LGPL-3.0-or-later": "lgpl-3.0",
    "MIT": "mit",
    "MPL-2.0": "mpl-2.0",
    "ODC-By-1.0": "odc-by",
    "ODbL-1.0": "odbl",
    "PDDL-1.0": "pddl",
    "Unlicense": "unlicense",
}
"""SPDX identifier: the Hub's name for the field `license` of a dataset card (hub-docs, repositories-licenses)."""
OTHER = "other"
SPDX_PAGE = "https://spdx.org/licenses/{}.html"


def hub_names(licences: list[str]) -> list[str]:
    """Each once, sorted; what the Hub has no name for is `other`."""
    return sorted({HUB.get(licence, OTHER) for licence in licences})


def pages(licences: list[str]) -> list[str]:
    """Each once, sorted: the page of a licence that is known by its SPDX identifier, the text of any other."""
    return sorted({SPDX_PAGE.format(licence) if licence in HUB else licence for licence in licences})
