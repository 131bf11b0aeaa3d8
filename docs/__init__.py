"""The course as a static site: `make site` writes it into _site/. Nothing is executed and nothing is fetched.

``build`` makes the pages' sources in a temporary folder and has Sphinx write them as HTML: ``lessons`` turns the stored
notebooks into pages, ``pages`` writes everything that is not a lesson, ``mathml`` sets formulas without a script.
"""
