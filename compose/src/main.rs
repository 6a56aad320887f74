//! `gapscope-lab`: see the library.

fn main() -> std::process::ExitCode {
    gapscope_lab::main_from(std::env::args_os())
}
