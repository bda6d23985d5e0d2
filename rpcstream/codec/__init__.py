"""Rich values in JSON: arrays, images, bytes, complex numbers and the user's own types as tagged objects.

The section "Rich values" of the wire page is the contract. Importing this package imports neither numpy, Pillow nor
msgspec: each is imported with the first value or hint that needs it.
"""

from __future__ import annotations

from .codec import Codec
from .options import ImageFile, ImageOptions, MaxSide, Shape
from .rich_hint import TAG_KEY, RichHint

__all__ = ["TAG_KEY", "Codec", "ImageFile", "ImageOptions", "MaxSide", "RichHint", "Shape"]
