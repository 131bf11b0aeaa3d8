"""The course around the library: lessons, exercises, checks, hints, and advice from stored measurements.

``check`` judges an attempt, ``hint`` and ``solution`` help, ``overview`` shows the exercises. ``which_version_when``
chooses a version of attention from stored measurements, ``doctor`` reports what this machine can run, and ``source``
displays functions of the library in lessons.
"""
