// The program `flashlift`. Its code is in main.cpp, which packages put into the library that contains everything.
extern "C" int flashlift_command_line(int argc, char** argv);

int main(int argc, char** argv) { return flashlift_command_line(argc, argv); }
