"""Rich values in JSON: arrays, images, bytes, complex numbers and the user's own types as tagged objects.

Pure: knows no method, message or connection. The wire page, "Rich values", is its contract. Importing this package
imports neither numpy, Pillow nor msgspec; each comes with the first value or hint of its family.
"""

from __future__ import annotations

from .codec import Codec
from .options import ImageFile, ImageOptions, MaxSide, Shape
from .rich_hint import TAG_KEY, RichHint

__all__ = ["TAG_KEY", "Codec", "ImageFile", "ImageOptions", "MaxSide", "RichHint", "Shape"]
