// quire: serves and measures latent-attention language models.
#include "cli/program.h"

int main(int argc, char** argv) { return quire::cli::RunProgram(argc, argv); }
