// Of libraries that only lead to libflashlift.so.
