-- Health of an AcceleratorClass for Argo CD: what it describes takes effect with no step of its own, so it is healthy as
-- soon as it exists. Services that take an edit in turn show their own progress.
local class = obj.spec or {}
local price = class.pricePerHour and (", " .. class.pricePerHour .. " per hour") or ""
return { status = "Healthy", message = (class.memory or "no memory") .. " of memory" .. price }
