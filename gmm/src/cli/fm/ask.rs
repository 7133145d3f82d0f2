//! Requests that each subcommand of `gmm fm` sends to the FM API.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use super::endpoint::Endpoint;
use cxloe_daemon::command_line::{Failure, output};
use cxloe_fm::bytes::{Payload, Reader};
use cxloe_fm::client::Recipient;
use cxloe_fm::component::{COMMAND_EFFECTS_LOG, GetLog, Identity, SupportedLogs};
use cxloe_fm::dcd::{self, GetExtents, GetHostRegions, InitiateAdd, InitiateRelease, removal, selection};
use cxloe_fm::event_record::{ClearEvents, Events, GetEvents, Log};
use cxloe_fm::mld_component::{
    ALLOCATION_UNIT, GetLdAllocations, GetQosFractions, LdAllocation, LdAllocations, LdInfo, QosControl,
    QosFractions, QosStatus, SetLdAllocations,
};
use cxloe_fm::mld_port::{ConfigRequest, ConfigResponse, MemoryRequest, MemoryResponse};
use cxloe_fm::opcode::{CommandEffect, Opcode};
use cxloe_fm::physical_switch::{GetPortState, PortControl, PortStates, SwitchIdentity};
use cxloe_fm::virtual_switch::{
    BindVppb, GenerateAer, GetVirtualSwitches, UnbindVppb, VirtualSwitches, WHOLE_DEVICE,
};
use serde_json::{Value, json};

use super::show::{self, Table};
use super::{DcdCommand, FmCommand, PortOperation, QosArgs, UnbindOption, VppbArgs};

/// Pause between two reads of a background operation's status.
const POLL: Duration = Duration::from_millis(50);
/// In requests: the maximum count, which stands for all entries. Port numbers are below it.
const ALL: u8 = u8::MAX;

/// Sends the requests of a subcommand and prints the answers, as JSON or as tables.
pub struct Commands<'a> {
    pub client: &'a mut Endpoint,
    pub recipient: Recipient,
    pub port: Option<u8>,
    pub json: bool,
}

impl Commands<'_> {
    pub async fn carry_out(&mut self, command: FmCommand) -> Result<(), Failure> {
        match command {
            // `gmm fm join` is handled before a connection is made.
            FmCommand::Join { .. } => Ok(()),
            FmCommand::Identify => self.identify().await,
            FmCommand::Ports { ports } => self.ports(ports).await,
            FmCommand::PortControl { operation } => self.control_port(operation).await,
            FmCommand::Vcs { ids, all } => self.virtual_switches(ids, all).await,
            FmCommand::Bind { vppb, ld, wait } => self.bind(vppb, ld, wait.no_wait).await,
            FmCommand::Unbind { vppb, option, wait } => self.unbind(vppb, option, wait.no_wait).await,
            FmCommand::Aer { vppb, error } => {
                let request = GenerateAer { vcs: vppb.vcs, vppb: vppb.vppb, error, header: [0; 32] };
                Ok(self.client.ask(Recipient::Switch, Opcode::GenerateAer, &request).await?)
            }
            FmCommand::Background { wait, abort } => self.background(wait, abort).await,
            FmCommand::Log => self.effects().await,
            FmCommand::Events { log, clear } => self.events(log, clear).await,
            FmCommand::LdInfo => {
                self.device()?;
                let info: LdInfo = self.client.ask(self.recipient, Opcode::GetLdInfo, &()).await?;
                self.show(show::ld_info(&info))
            }
            FmCommand::LdAlloc { set, first } => self.allocations(&set, first).await,
            FmCommand::Qos(qos) => self.qos(qos).await,
            FmCommand::Dcd { command } => self.dynamic_capacity(command.unwrap_or(DcdCommand::Info)).await,
            FmCommand::Config { ld, offset, write } => self.configuration(ld, offset, write).await,
            FmCommand::Registers { ld, offset, length } => {
                let request = MemoryRequest {
                    port: self.device()?,
                    first_enables: 0xF,
                    last_enables: 0xF,
                    write: false,
                    ld,
                    length,
                    offset: offset.into(),
                    data: vec![0; length.into()],
                };
                let opcode = Opcode::LdMemoryRequest;
                let response: MemoryResponse = self.client.ask(Recipient::Switch, opcode, &request).await?;
                self.show(show::bytes(offset.into(), &response.data))
            }
            FmCommand::Raw { opcode, payload } => self.raw(opcode, &payload).await,
        }
    }

    fn show(&self, (value, table): (Value, Table)) -> Result<(), Failure> {
        if self.json { output::print(value, false) } else { output::line(&table.to_string()) }
    }

    /// The port given with `--port`, which this subcommand requires.
    fn device(&self) -> Result<u8, Failure> {
        self.port.ok_or_else(|| {
            Failure::usage("say behind which port the device is, with --port before the command")
        })
    }

    async fn identify(&mut self) -> Result<(), Failure> {
        let identity: Identity = self.client.ask(self.recipient, Opcode::Identify, &()).await?;
        let switch: Option<SwitchIdentity> = match self.recipient {
            Recipient::Switch => Some(self.client.ask(self.recipient, Opcode::IdentifySwitch, &()).await?),
            Recipient::Device(_) => None,
        };
        self.show(show::identity(&identity, switch.as_ref()))
    }

    async fn ports(&mut self, ports: Vec<u8>) -> Result<(), Failure> {
        let ports = if ports.is_empty() { (0..ALL).collect() } else { ports };
        let request = GetPortState { ports };
        let states: PortStates =
            self.client.ask(Recipient::Switch, Opcode::GetPhysicalPortState, &request).await?;
        self.show(show::ports(&states.ports))
    }

    async fn control_port(&mut self, operation: PortOperation) -> Result<(), Failure> {
        let operation = match operation {
            PortOperation::Assert => PortControl::ASSERT_PERST,
            PortOperation::Deassert => PortControl::DEASSERT_PERST,
            PortOperation::Reset => PortControl::RESET_PPB,
        };
        let request = PortControl { port: self.device()?, operation };
        self.client.ask(Recipient::Switch, Opcode::PhysicalPortControl, &request).await
    }

    async fn virtual_switches(&mut self, ids: Vec<u8>, all: bool) -> Result<(), Failure> {
        let ids = if ids.is_empty() {
            let opcode = Opcode::IdentifySwitch;
            let switch: SwitchIdentity = self.client.ask(Recipient::Switch, opcode, &()).await?;
            switch.active_virtual_switches.iter().collect()
        } else {
            ids
        };
        let request = GetVirtualSwitches { first_vppb: 0, vppb_limit: ALL, ids };
        let last_percent = self.fetch_virtual_switches(&request).await?;
        self.show(show::virtual_switches(&last_percent.switches, all))
    }

    async fn fetch_virtual_switches(
        &mut self,
        request: &GetVirtualSwitches,
    ) -> Result<VirtualSwitches, Failure> {
        let read = |bytes: &[u8]| VirtualSwitches::from_bytes(bytes, request);
        let opcode = Opcode::GetVirtualSwitchInfo;
        self.client.ask_with(Recipient::Switch, opcode, &request.to_bytes(), read).await
    }

    async fn bind(
        &mut self,
        VppbArgs { vcs, vppb }: VppbArgs,
        ld: Option<u16>,
        no_wait: bool,
    ) -> Result<(), Failure> {
        let request = BindVppb { vcs, vppb, port: self.device()?, ld: ld.unwrap_or(WHOLE_DEVICE) };
        self.client.ask::<()>(Recipient::Switch, Opcode::BindVppb, &request).await?;
        if no_wait { Ok(()) } else { self.wait().await }
    }

    async fn unbind(
        &mut self,
        VppbArgs { vcs, vppb }: VppbArgs,
        option: UnbindOption,
        no_wait: bool,
    ) -> Result<(), Failure> {
        let option = match option {
            UnbindOption::Wait => 0,
            UnbindOption::Managed => 1,
            UnbindOption::Surprise => 2,
        };
        let request = UnbindVppb { vcs, vppb, option };
        self.client.ask::<()>(Recipient::Switch, Opcode::UnbindVppb, &request).await?;
        if no_wait { Ok(()) } else { self.wait().await }
    }

    async fn background(&mut self, wait: bool, abort: bool) -> Result<(), Failure> {
        if abort {
            self.client.ask::<()>(Recipient::Switch, Opcode::RequestAbort, &()).await?;
        }
        if wait {
            return self.wait().await;
        }
        let status = self.client.background().await?;
        self.show(show::background(&status))
    }

    /// Waits for the end of the background operation, and displays its progress on a terminal.
    async fn wait(&mut self) -> Result<(), Failure> {
        let mut last_percent = None;
        loop {
            let status = self.client.background().await?;
            if std::io::stderr().is_terminal() && last_percent != Some(status.percent) {
                let end = if status.running { "" } else { "\n" };
                // Failures to write the progress are ignored, since it is not part of the answer.
                let _ = write!(std::io::stderr(), "\r{:>3} %{end}", status.percent);
                last_percent = Some(status.percent);
            }
            if !status.running {
                self.show(show::background(&status))?;
                let failed = || format!("{} failed: {}", show::opcode(status.opcode), status.code);
                return if status.code.is_success() { Ok(()) } else { Err(Failure::failed(failed())) };
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn effects(&mut self) -> Result<(), Failure> {
        let logs: SupportedLogs = self.client.ask(self.recipient, Opcode::GetSupportedLogs, &()).await?;
        let log = logs.logs.iter().find(|log| log.id == COMMAND_EFFECTS_LOG);
        let log = log.ok_or_else(|| Failure::failed("this component has no Command Effects Log"))?;
        let request = GetLog { id: log.id, offset: 0, length: log.size };
        let read = |bytes: &[u8]| Reader::new(bytes).list::<CommandEffect>(bytes.len() / 4);
        let entries = self.client.ask_with(self.recipient, Opcode::GetLog, &request.to_bytes(), read).await?;
        self.show(show::effects(&entries))
    }

    async fn events(&mut self, log: Option<u8>, clear: bool) -> Result<(), Failure> {
        let logs: Vec<u8> = log.map_or_else(|| Log::ALL.map(Log::number).to_vec(), |log| vec![log]);
        let mut shown = Vec::new();
        for log in logs {
            let events: Events =
                self.client.ask(self.recipient, Opcode::GetEventRecords, &GetEvents { log }).await?;
            if clear && (!events.records.is_empty() || events.overflow.is_some()) {
                // Only the displayed records are cleared: new ones may have been added. Without records, only the
                // overflow is cleared.
                let handles: Vec<u16> = events.records.iter().map(|record| record.handle).collect();
                let request = ClearEvents { log, all: handles.is_empty(), handles };
                self.client.ask::<()>(self.recipient, Opcode::ClearEventRecords, &request).await?;
            }
            shown.push((log, events));
        }
        self.show(show::events(&shown))
    }

    async fn allocations(&mut self, set: &[cxloe_fabric::model::ByteSize], first: u8) -> Result<(), Failure> {
        self.device()?;
        if let Some(size) = set.iter().find(|size| !size.0.is_multiple_of(ALLOCATION_UNIT)) {
            return Err(Failure::usage(format!("{size} is not a multiple of 256 MiB")));
        }
        if !set.is_empty() {
            let allocation = |size: &cxloe_fabric::model::ByteSize| LdAllocation {
                range_1: size.0 / ALLOCATION_UNIT,
                range_2: 0,
            };
            let request = SetLdAllocations { first, allocations: set.iter().map(allocation).collect() };
            self.client.ask::<SetLdAllocations>(self.recipient, Opcode::SetLdAllocations, &request).await?;
        }
        let request = GetLdAllocations { first: 0, limit: ALL };
        let all: LdAllocations = self.client.ask(self.recipient, Opcode::GetLdAllocations, &request).await?;
        self.show(show::allocations(&all))
    }

    async fn qos(&mut self, args: QosArgs) -> Result<(), Failure> {
        self.device()?;
        let to = self.recipient;
        let mut control: QosControl = self.client.ask(to, Opcode::GetQosControl, &()).await?;
        if args.enables.is_some() || args.moderate.is_some() || args.severe.is_some() {
            control.enables = args.enables.unwrap_or(control.enables);
            control.moderate = args.moderate.unwrap_or(control.moderate);
            control.severe = args.severe.unwrap_or(control.severe);
            control = self.client.ask(to, Opcode::SetQosControl, &control).await?;
        }
        for (opcode, fraction) in
            [(Opcode::SetQosAllocated, args.allocated), (Opcode::SetQosLimit, args.limit)]
        {
            if let Some(fraction) = fraction {
                let request = QosFractions { first: args.ld, fractions: vec![fraction] };
                self.client.ask::<QosFractions>(to, opcode, &request).await?;
            }
        }
        let status: QosStatus = self.client.ask(to, Opcode::GetQosStatus, &()).await?;
        let info: LdInfo = self.client.ask(to, Opcode::GetLdInfo, &()).await?;
        let all = GetQosFractions { count: u8::try_from(info.ld_count).unwrap_or(ALL), first: 0 };
        let allocated: QosFractions = self.client.ask(to, Opcode::GetQosAllocated, &all).await?;
        let limit: QosFractions = self.client.ask(to, Opcode::GetQosLimit, &all).await?;
        self.show(show::qos(&control, status, &allocated.fractions, &limit.fractions))
    }

    async fn dynamic_capacity(&mut self, command: DcdCommand) -> Result<(), Failure> {
        self.device()?;
        let to = self.recipient;
        match command {
            DcdCommand::Info => {
                let info: dcd::DcdInfo = self.client.ask(to, Opcode::GetDcdInfo, &()).await?;
                self.show(show::dcd_info(&info))
            }
            DcdCommand::Regions { ld } => {
                let request = GetHostRegions { host: ld, count: dcd::REGIONS_MAX as u8, first: 0 };
                let regions: dcd::HostRegions =
                    self.client.ask(to, Opcode::GetHostDcRegions, &request).await?;
                self.show(show::dc_regions(&regions))
            }
            DcdCommand::Extents { ld } => {
                let request = GetExtents { host: ld, count: u32::MAX, first: 0 };
                let extents: dcd::Extents = self.client.ask(to, Opcode::GetDcExtents, &request).await?;
                self.show(show::extents(&extents))
            }
            DcdCommand::Add { ld, size, tag } => {
                let (policy, region, length) = (selection::FREE, 0, size.0);
                let request = InitiateAdd { host: ld, policy, region, length, tag, extents: Vec::new() };
                Ok(self.client.ask(to, Opcode::InitiateDcAdd, &request).await?)
            }
            DcdCommand::Release { ld, tag, force } => {
                let (policy, extents) = (removal::TAG, Vec::new());
                let request = InitiateRelease { host: ld, policy, forced: force, length: 0, tag, extents };
                Ok(self.client.ask(to, Opcode::InitiateDcRelease, &request).await?)
            }
        }
    }

    async fn configuration(&mut self, ld: u16, offset: u32, write: Option<u32>) -> Result<(), Failure> {
        let data = write.unwrap_or(0).to_le_bytes();
        let offset = u16::try_from(offset).ok().filter(|offset| *offset < 0x1000);
        let offset = offset.ok_or_else(|| Failure::usage("a configuration space ends at offset FFF"))?;
        let (port, byte_enables, write) = (self.device()?, 0xF, write.is_some());
        let request = ConfigRequest { port, offset, byte_enables, write, ld, data };
        let opcode = Opcode::LdConfigRequest;
        let response: ConfigResponse = self.client.ask(Recipient::Switch, opcode, &request).await?;
        if write { Ok(()) } else { self.show(show::bytes(offset.into(), &response.data)) }
    }

    async fn raw(&mut self, opcode: u32, payload: &str) -> Result<(), Failure> {
        let opcode =
            u16::try_from(opcode).map_err(|_| Failure::usage("an opcode has four hexadecimal digits"))?;
        let digits: String = payload.chars().filter(|c| !c.is_whitespace()).collect();
        let bytes = (0..digits.len()).step_by(2).map(|at| {
            let pair = digits.get(at..at + 2).filter(|pair| pair.bytes().all(|b| b.is_ascii_hexdigit()));
            pair.and_then(|pair| u8::from_str_radix(pair, 16).ok())
        });
        let bytes: Option<Vec<u8>> = bytes.collect();
        let bytes =
            bytes.ok_or_else(|| Failure::usage(format!("`{payload}` is not pairs of hexadecimal digits")))?;
        let response = self.client.send(self.recipient, opcode, &bytes).await?;
        let code = response.header.code;
        let payload: String = response.payload.iter().map(|byte| format!("{byte:02x}")).collect();
        if self.json {
            let value = json!({
                "opcode": format!("{opcode:04x}"),
                "return_code": code.number(),
                "meaning": code.to_string(),
                "payload": payload,
            });
            output::print(value, false)?;
        } else {
            output::line(&format!("{code}{}{payload}", if payload.is_empty() { "" } else { ": " }))?;
        }
        if code.is_success() {
            Ok(())
        } else {
            Err(Failure::failed(format!("{} refused: {code}", show::opcode(opcode))))
        }
    }
}
