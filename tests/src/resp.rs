//! Reading what a client sends to Redis.

/// Cuts a stream of bytes into commands.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    bytes: Vec<u8>,
}

impl Commands {
    /// Takes more bytes.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }
}

// === impl Commands ===

/// The arguments of each command, its name first.
impl Iterator for Commands {
    type Item = Vec<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        let (command, length) = parse(&self.bytes)?;
        self.bytes.drain(..length);
        Some(command)
    }
}

/// The first command and its length; `None` if it is not there as a whole.
fn parse(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let (count, mut at) = header(bytes, 0, b'*')?;
    let mut command = Vec::with_capacity(count);
    for _ in 0..count {
        let (length, start) = header(bytes, at, b'$')?;
        command.push(bytes.get(start..start + length)?.to_vec());
        at = start + length + 2;
    }
    (at <= bytes.len()).then_some((command, at))
}

/// The number of a line such as `*3`, and where the next one starts.
fn header(bytes: &[u8], at: usize, kind: u8) -> Option<(usize, usize)> {
    let line = bytes.get(at..)?;
    let end = line.iter().position(|&byte| byte == b'\r')?;
    // Clients of Redis send arrays of bulk strings; whoever else uses the proxy has nothing counted.
    (line[0] == kind).then_some(())?;
    let number = str::from_utf8(&line[1..end]).ok()?.parse().ok()?;
    Some((number, at + end + 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_come_out_whole_however_the_bytes_arrive() {
        let stream = b"*2\r\n$4\r\nPING\r\n$2\r\n\r\n\r\n*1\r\n$4\r\nINFO\r\n";
        for step in 1..stream.len() {
            let mut commands = Commands::default();
            let mut read = Vec::new();
            for bytes in stream.chunks(step) {
                commands.feed(bytes);
                read.extend(commands.by_ref());
            }
            assert_eq!(
                read,
                [
                    vec![b"PING".to_vec(), b"\r\n".to_vec()],
                    vec![b"INFO".to_vec()]
                ]
            );
        }
    }
}
