//! The program `gapscope-agent`.

fn main() -> std::process::ExitCode {
    gapscope_agent::main_from(std::env::args_os())
}
