"""The checks that an implementation must pass to count as right: tests of the suite, with arguments that are fast.

What no test of the suite rejects is written out here."""
