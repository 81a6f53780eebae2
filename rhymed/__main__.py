import sys

from rhymed.start.cli import main

sys.exit(main())
