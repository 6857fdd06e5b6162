--[[
burst_buffer.lua: Slurm makes a job's pool, stages its data in and out, and takes the pool down.

slurm.conf has `BurstBufferType=burst_buffer/lua`, and this file is beside it. A job asks for a pool in its script:

    #BB_LUA tsumugi size=10G stage_in=/project/input:/ stage_out=/results:/project/results

    size=BYTES       of the backing file of each node, as `tsumugi up --size` (default: in /etc/tsumugi/slurm.conf)
    nodes=N          only the first N nodes of the job (default: all)
    stage_in=A:B     copies A to B in the pool before the job starts; may be repeated
    stage_out=A:B    copies A of the pool to B when the job has ended, however it did; may be repeated

Paths outside of the pool are absolute, paths of the pool are relative to its mount; neither may hold blanks. The job
finds the pool in TSUMUGI_JOB and TSUMUGI_MOUNT.

The pool is made of the SSDs of the job's own nodes. Slurm chooses these when the job starts, so all of it happens in
slurm_bb_pre_run: the job is CONFIGURING as long as data is staged in, for OtherTimeout of burst_buffer.conf at most.

Slurm calls the functions on the machine of slurmctld, as SlurmUser, who has to reach the nodes as root by ssh without
being asked. Data is copied on the job's first node, with the rights of the job's user. What a job's script holds is
checked here word by word, since some of it becomes part of commands.

Some functions hold slurmctld up; they only read the job's script.
--]]

local SETTINGS = "/etc/tsumugi/slurm.conf"
local PATH = "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin; export PATH; "
local SSH = "ssh -oBatchMode=yes -oConnectTimeout=10 -- "

-- Quotes a word for the shell.
local function quote(word)
	return "'" .. word:gsub("'", "'\\''") .. "'"
end

-- Runs a command. Returns whether it succeeds, and its output.
local function run(command)
	local pipe = io.popen(PATH .. "{ " .. command .. "; } 2>&1; echo \"status $?\"")
	local text = pipe:read("*all")
	pipe:close()
	local said, status = text:match("^(.-)\n?status (%d+)\n$")
	if not said then
		return false, text
	end
	return status == "0", said
end

-- Returns the settings of the site.
local function settings()
	local found = {}
	local file = io.open(SETTINGS)
	if file then
		for line in file:lines() do
			local name, value = line:match("^%s*([%a_]+)=(.*)$")
			if name then
				found[name] = value:gsub("^\"(.*)\"$", "%1")
			end
		end
		file:close()
	end
	return found
end

-- Adds one word of a job's request. Returns the error, if there is one.
local function add(wanted, word)
	local name, value = word:match("^([%a_]+)=(.+)$")
	if name == "size" and value:match("^%d+[KMGTkmgt]?i?B?$") then
		wanted.size = value
	elseif name == "nodes" and value:match("^[1-9]%d*$") then
		wanted.nodes = tonumber(value)
	elseif name == "stage_in" or name == "stage_out" then
		local from, to = value:match("^([^:]+):([^:]+)$")
		local outside = name == "stage_in" and from or to
		if not from or value:match("[^%w/._@%%+=,:-]") then
			return word .. ": two paths with a colon between them, of letters, digits and /._@%+=,-"
		elseif outside:sub(1, 1) ~= "/" then
			return word .. ": " .. outside .. " is not an absolute path"
		end
		table.insert(wanted[name], { from = from, to = to })
	else
		return word .. ": size=BYTES, nodes=N, stage_in=A:B and stage_out=A:B are known"
	end
end

-- Returns the request in a job's script, if there is one, and its error.
local function request(job_script)
	local wanted = nil
	for line in io.lines(job_script) do
		local words = line:match("^#BB_LUA%s+tsumugi%s*(.*)$")
		if words then
			wanted = wanted or { stage_in = {}, stage_out = {} }
			for word in words:gmatch("%S+") do
				local wrong = add(wanted, word)
				if wrong then
					return nil, "#BB_LUA tsumugi: " .. wrong
				end
			end
		end
	end
	return wanted
end

-- Returns the name of a job's pool.
local function pool(job_id)
	assert(job_id:match("^%d+$"), "a job's number")
	return "bb-" .. job_id
end

local function mount(job_id)
	return "/run/tsumugi/" .. pool(job_id) .. ".mnt"
end

-- Returns a job's user, group and nodes, as Slurm shows them; or nothing, and the reason.
local function allocation(job_id, wanted)
	local is_shown, text = run("scontrol show job -o " .. quote(job_id))
	local uid = text:match(" UserId=[^ (]*%((%d+)%)")
	local gid = text:match(" GroupId=[^ (]*%((%d+)%)")
	local list = text:match(" NodeList=([^ ]+)")
	if not is_shown or not uid or not gid or not list then
		return nil, "scontrol shows no nodes of job " .. job_id .. ": " .. text
	end
	local is_read, names = run("scontrol show hostnames " .. quote(list))
	local nodes = {}
	for name in names:gmatch("[%w._-]+") do
		if #nodes < (wanted.nodes or math.huge) then
			table.insert(nodes, name)
		end
	end
	if not is_read or #nodes == 0 then
		return nil, "scontrol shows no nodes of job " .. job_id .. ": " .. names
	end
	return { uid = uid, gid = gid, nodes = nodes }
end

-- Returns a path of the pool.
local function inside(job_id, path)
	return mount(job_id) .. "/" .. path:gsub("^/+", "")
end

-- Copies a tree on the first node, as the job's user.
local function copy(job, from, to)
	local there = "setpriv --reuid=" .. job.uid .. " --regid=" .. job.gid .. " --init-groups tsumugi cp -r "
		.. quote(from) .. " " .. quote(to)
	return run(SSH .. quote("root@" .. job.nodes[1]) .. " " .. quote(PATH .. there))
end

-- Makes the pool on the job's nodes.
local function create(job_id, wanted, job)
	local site = settings()
	local hosts = {}
	for _, name in ipairs(job.nodes) do
		table.insert(hosts, "root@" .. name)
	end
	-- As a line, so that `up` does not take it for a file of that name in the working directory.
	local words = { "tsumugi", "up", "--nodes", quote(table.concat(hosts, ",")), "--job", pool(job_id),
		"--owner", job.uid, "--owner-slurm-job", job_id, "--mount-base", mount(job_id), "--size",
		quote(wanted.size or site.size or "2G") }
	if site.device_dir then
		table.insert(words, "--device-dir " .. quote(site.device_dir))
	end
	table.insert(words, site.options or "")
	return run("cd / && " .. table.concat(words, " "))
end

-- Reports a failure to the log and to the job.
local function failure(job_id, what, text)
	slurm.log_error("tsumugi: job %s: %s: %s", job_id, what, text)
	return slurm.ERROR, "tsumugi: " .. what .. ": " .. text
end

-- A job is submitted. Slurm waits.
function slurm_bb_job_process(job_script)
	local wanted, wrong = request(job_script)
	if wrong then
		return slurm.ERROR, wrong
	end
	return slurm.SUCCESS
end

-- Slurm calls this again and again, and waits. A job's pool consists of its nodes, so there is nothing to count.
function slurm_bb_pools()
	return slurm.SUCCESS
end

-- The job waits for nodes, and has none yet.
function slurm_bb_setup()
	return slurm.SUCCESS
end

function slurm_bb_data_in()
	return slurm.SUCCESS
end

function slurm_bb_test_data_in()
	return slurm.SUCCESS
end

function slurm_bb_real_size()
	return slurm.SUCCESS
end

-- The job has nodes. Slurm waits.
function slurm_bb_paths(job_id, job_script, path_file)
	if request(job_script) then
		local file = assert(io.open(path_file, "w"))
		file:write("TSUMUGI_JOB=", pool(job_id), "\n", "TSUMUGI_MOUNT=", mount(job_id), "\n")
		file:close()
	end
	return slurm.SUCCESS
end

-- The job has nodes and is CONFIGURING: the pool is made, and data staged in.
function slurm_bb_pre_run(job_id, job_script)
	local wanted = request(job_script)
	if not wanted then
		return slurm.SUCCESS
	end
	local job, why = allocation(job_id, wanted)
	if not job then
		return failure(job_id, "create", why)
	end
	local is_made, text = create(job_id, wanted, job)
	if not is_made then
		return failure(job_id, "create", text)
	end
	for _, stage in ipairs(wanted.stage_in) do
		local is_copied, said = copy(job, stage.from, inside(job_id, stage.to))
		if not is_copied then
			return failure(job_id, "stage in", said)
		end
	end
	return slurm.SUCCESS
end

-- The job has ended.
function slurm_bb_post_run()
	return slurm.SUCCESS
end

-- The job has ended; other jobs may have its nodes.
function slurm_bb_data_out(job_id, job_script)
	local wanted = request(job_script)
	if not wanted or #wanted.stage_out == 0 then
		return slurm.SUCCESS
	end
	local job, why = allocation(job_id, wanted)
	if not job then
		return failure(job_id, "stage out", why)
	end
	-- The teardown follows, so a failure must not keep the others from being copied.
	local failures = {}
	for _, stage in ipairs(wanted.stage_out) do
		local is_copied, said = copy(job, inside(job_id, stage.from), stage.to)
		if not is_copied then
			table.insert(failures, said)
		end
	end
	if #failures > 0 then
		return failure(job_id, "stage out", table.concat(failures, "\n"))
	end
	return slurm.SUCCESS
end

function slurm_bb_test_data_out()
	return slurm.SUCCESS
end

-- The last call about a job, also after a cancellation at any moment. Slurm repeats it when it fails.
function slurm_bb_job_teardown(job_id, job_script, hurry)
	local is_gone, text = run("tsumugi down --job " .. pool(job_id) .. " --deadline 20s || test $? = 3")
	if not is_gone then
		return failure(job_id, "teardown", text)
	end
	return slurm.SUCCESS
end

-- `scontrol show bbstat JOB` shows the pool of a job; only root may see other users' pools.
function slurm_bb_get_status(uid, gid, job_id)
	if not job_id or not job_id:match("^%d+$") then
		return slurm.SUCCESS, "usage: scontrol show bbstat JOB\n"
	end
	local job, why = allocation(job_id, {})
	if not job then
		return slurm.SUCCESS, why .. "\n"
	elseif uid ~= "0" and uid ~= job.uid then
		return slurm.SUCCESS, "job " .. job_id .. " is another user's\n"
	end
	local _, text = run("tsumugi status --job " .. pool(job_id))
	return slurm.SUCCESS, text .. "\n"
end
