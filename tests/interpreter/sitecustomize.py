"""Python runs this at the start of every process of the suite, because `tests/interpreters.py` puts its folder on the path.

Spark's Python processes would import PySpark from a zip file without bytecode, and so compile it at every start. The same
modules lie in the environment, with bytecode.
"""

import sys

sys.path[:] = [place for place in sys.path if not place.endswith(("/pyspark.zip", "-src.zip"))]
