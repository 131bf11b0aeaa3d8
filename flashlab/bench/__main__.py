import sys

from flashlab.bench.round_robin import main

sys.exit(main(sys.argv[1:]))
