module flashlift.example/attention

go 1.19
