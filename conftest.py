"""What every test of this repository, also of the contract suite, finds: the layers as back-ends to try."""

import layered

layered.register()
