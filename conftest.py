"""What every test here finds, also the contract suite: stores under layers, as back-ends to try."""

import layered
import waiting

layered.register()
waiting.register()
