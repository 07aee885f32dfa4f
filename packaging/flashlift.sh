#!/bin/sh
# The command `flashlift` of a wheel: runs the program that lies in the Python package. By the shell, which starts ten
# times as fast as Python.
here=$(dirname "$(readlink -f "$0")")
for folder in "$here"/../lib*/python3*/site-packages "$here"/../lib*/python3*/dist-packages "$here"/..; do
  if [ -x "$folder/flashlift/bin/flashlift" ]; then
    exec "$folder/flashlift/bin/flashlift" "$@"
  fi
done
echo "error: the Python package flashlift does not lie beside $here; try: python -m flashlift" >&2
exit 2
