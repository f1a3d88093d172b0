//! The program. Everything is in the library beside it, which cargo compiles while the engine's machine code
//! is still being made.

fn main() -> std::process::ExitCode {
    sidecore_bench::main()
}
