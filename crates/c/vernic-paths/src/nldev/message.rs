//! Bytes of netlink messages: a header, then attributes, each of a length, a type and a value, at
//! multiples of 4.

/// Bytes of a message's header.
const HEADER: usize = 16;
/// Bytes of an attribute's header.
const ATTR_HEADER: usize = 4;

/// Client `RDMA_NL_NLDEV`, in the high bits of a type.
const NLDEV: u16 = 5;
/// Bits of a type that are the command.
const COMMAND_BITS: u32 = 10;

const NLM_F_REQUEST: u16 = 0x01;
const NLM_F_MULTI: u16 = 0x02;
const NLM_F_ACK: u16 = 0x04;
/// NLM_F_ROOT and NLM_F_MATCH.
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

/// Types of attributes, `RDMA_NLDEV_ATTR_` before each.
pub(super) mod attr {
    pub(in super::super) const DEV_INDEX: u16 = 1;
    pub(in super::super) const DEV_NAME: u16 = 2;
    pub(in super::super) const PORT_INDEX: u16 = 3;
    pub(in super::super) const FW_VERSION: u16 = 5;
    pub(in super::super) const NODE_GUID: u16 = 6;
    pub(in super::super) const SYS_IMAGE_GUID: u16 = 7;
    pub(in super::super) const PORT_STATE: u16 = 12;
    pub(in super::super) const PORT_PHYS_STATE: u16 = 13;
    pub(in super::super) const DEV_NODE_TYPE: u16 = 14;
    pub(in super::super) const RES_SUMMARY: u16 = 15;
    pub(in super::super) const RES_SUMMARY_ENTRY: u16 = 16;
    pub(in super::super) const RES_SUMMARY_ENTRY_NAME: u16 = 17;
    pub(in super::super) const RES_SUMMARY_ENTRY_CURR: u16 = 18;
    pub(in super::super) const RES_QP: u16 = 19;
    pub(in super::super) const RES_QP_ENTRY: u16 = 20;
    pub(in super::super) const RES_LQPN: u16 = 21;
    pub(in super::super) const RES_RQPN: u16 = 22;
    pub(in super::super) const RES_RQ_PSN: u16 = 23;
    pub(in super::super) const RES_SQ_PSN: u16 = 24;
    pub(in super::super) const RES_TYPE: u16 = 26;
    pub(in super::super) const RES_STATE: u16 = 27;
    pub(in super::super) const RES_PID: u16 = 28;
    pub(in super::super) const NDEV_INDEX: u16 = 50;
    pub(in super::super) const NDEV_NAME: u16 = 51;
    pub(in super::super) const SYS_NETNS_MODE: u16 = 66;
    pub(in super::super) const DEV_PROTOCOL: u16 = 67;
    pub(in super::super) const STAT_RES: u16 = 75;
    pub(in super::super) const STAT_HWCOUNTERS: u16 = 80;
    pub(in super::super) const STAT_HWCOUNTER_ENTRY: u16 = 81;
    pub(in super::super) const STAT_HWCOUNTER_ENTRY_NAME: u16 = 82;
    pub(in super::super) const STAT_HWCOUNTER_ENTRY_VALUE: u16 = 83;
    pub(in super::super) const SYS_COPY_ON_FORK: u16 = 93;
}

/// What a program asks.
#[derive(Debug)]
pub(super) struct Request {
    kind: u16,
    flags: u16,
    seq: u32,
    pub(super) command: u16,
    device: Option<u32>,
    /// It is about counters of objects instead of a port's.
    pub(super) is_of_objects: bool,
}

impl Request {
    /// The first message of these bytes, if it is whole and a request.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let short = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let long = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let (len, kind, flags, seq) = (long(0)? as usize, short(4)?, short(6)?, long(8)?);
        if len < HEADER || len > bytes.len() || flags & NLM_F_REQUEST == 0 {
            return None;
        }
        let command = kind & ((1 << COMMAND_BITS) - 1);
        let mut request = Self { kind, flags, seq, command, device: None, is_of_objects: false };
        let mut at = HEADER;
        // Each turn passes an attribute.
        while let (Some(attr_len), Some(kind)) = (short(at), short(at + 2)) {
            let attr_len = usize::from(attr_len);
            if attr_len < ATTR_HEADER || at + attr_len > len {
                break;
            }
            match kind {
                attr::DEV_INDEX => request.device = long(at + ATTR_HEADER),
                attr::STAT_RES => request.is_of_objects = true,
                _ => {}
            }
            at += attr_len.next_multiple_of(4);
        }
        Some(request)
    }

    pub(super) fn is_nldev(&self) -> bool {
        self.kind >> COMMAND_BITS == NLDEV
    }

    /// Whether it names a device.
    pub(super) fn names_device(&self) -> bool {
        self.device.is_some()
    }

    /// Whether this device is one that it is about: the one that it names, or any.
    pub(super) fn is_about(&self, device: u32) -> bool {
        self.device.is_none_or(|named| named == device)
    }

    fn is_dump(&self) -> bool {
        self.flags & NLM_F_DUMP == NLM_F_DUMP
    }

    /// What ends the answers: of a list always, else if the program wants it.
    pub(super) fn end(&self, bytes: &[u8], port: u32) -> Option<Vec<u8>> {
        match () {
            () if self.is_dump() => {
                Some(self.message(NLMSG_DONE, NLM_F_MULTI, port, &0_i32.to_ne_bytes()))
            }
            () if self.flags & NLM_F_ACK != 0 => Some(self.error(0, bytes, port)),
            () => None,
        }
    }

    /// An answer with an error number, or 0, and the request's header.
    pub(super) fn error(&self, error: i32, bytes: &[u8], port: u32) -> Vec<u8> {
        let mut body = (-error).to_ne_bytes().to_vec();
        body.extend(bytes.iter().take(HEADER));
        self.message(NLMSG_ERROR, 0, port, &body)
    }

    fn message(&self, kind: u16, flags: u16, port: u32, body: &[u8]) -> Vec<u8> {
        let mut message = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend(self.seq.to_ne_bytes());
        message.extend(port.to_ne_bytes());
        message.extend(body);
        message
    }
}

/// An answer that is being written.
#[derive(Debug, Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Bytes so far, without the header.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn byte(&mut self, kind: u16, value: u8) {
        self.put(kind, &[value]);
    }

    pub(super) fn number(&mut self, kind: u16, value: u32) {
        self.put(kind, &value.to_ne_bytes());
    }

    pub(super) fn long(&mut self, kind: u16, value: u64) {
        self.put(kind, &value.to_ne_bytes());
    }

    /// A text with a zero at its end.
    pub(super) fn text(&mut self, kind: u16, text: &str) {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        self.put(kind, &bytes);
    }

    /// Attributes inside an attribute.
    pub(super) fn nest(&mut self, kind: u16, inside: impl FnOnce(&mut Self)) {
        let mut nested = Self::new();
        inside(&mut nested);
        self.put(kind, &nested.0);
    }

    fn put(&mut self, kind: u16, value: &[u8]) {
        self.0.extend(((ATTR_HEADER + value.len()) as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    /// The whole message.
    pub(super) fn finish(self, request: &Request, port: u32) -> Vec<u8> {
        let flags = if request.is_dump() { NLM_F_MULTI } else { 0 };
        request.message(request.kind, flags, port, &self.0)
    }
}
