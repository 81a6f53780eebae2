import sys

from rhymed.cli import main

sys.exit(main())
