// The program `flashlift`. All of it is in main.cpp, which packages put into the library that holds everything.
extern "C" int flashlift_command_line(int argc, char** argv);

int main(int argc, char** argv) { return flashlift_command_line(argc, argv); }
