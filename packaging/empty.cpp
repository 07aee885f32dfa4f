// The source of libraries that only link to libflashlift.so.
