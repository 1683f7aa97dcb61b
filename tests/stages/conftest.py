"""The first call of a kernel compiles it, which may take seconds: no deadline for single examples."""

from hypothesis import settings

settings.register_profile("corpusmill", deadline=None)
settings.load_profile("corpusmill")
