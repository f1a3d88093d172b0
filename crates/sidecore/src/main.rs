//! The program. Everything is in the library beside it, which cargo compiles while the engine's machine code
//! is still being made; a program alone would have to wait for that.

fn main() -> std::process::ExitCode {
    sidecore::main()
}
