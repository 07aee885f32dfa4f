module flashlift/examples/xla

go 1.19
